"""How does Kubernetes learn how many endpoints are wanted? KEDA asks; this answers. See docs/guides/kubernetes.md."""
