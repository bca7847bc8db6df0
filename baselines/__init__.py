"""The techniques: one a file, all behind one contract (`baselines.technique`)."""
