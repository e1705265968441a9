"""Sources of endpoints: a static list, DNS, local processes, Ray and KEDA."""
