"""DEFault++: hierarchical diagnosis over feature groups and the fault propagation graph."""
