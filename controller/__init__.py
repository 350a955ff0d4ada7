"""gpuscale's operator: observes, decides, acts. Decisions live in ``core`` and do no I/O."""
