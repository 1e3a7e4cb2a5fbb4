"""Every instruction form that computes a value, on a GPU and in the simulator, on the same bits."""
