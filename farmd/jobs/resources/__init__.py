"""Jobs in Kubernetes: custom resources, pods and services, read and made without any request."""
