"""gpuscale's exporter: reads GPUs, publishes what is true about them. It knows nothing of the controller."""
