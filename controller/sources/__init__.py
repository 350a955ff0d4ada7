"""Where readings come from: exporters scraped directly, Prometheus."""
