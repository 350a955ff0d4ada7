"""Node-pool providers, one file each, found by the entry point group ``gpuscale.node_pools``."""
