"""External scaler for KEDA, which scales pools in Kubernetes. See docs/guides/kubernetes.md."""
