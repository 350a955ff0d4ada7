"""The driver's side of the exporter: the only place that imports pynvml."""
