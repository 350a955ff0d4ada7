"""The embedded cluster: an emulated Kubernetes API and simulated GPU nodes, for the demo and the tests."""
