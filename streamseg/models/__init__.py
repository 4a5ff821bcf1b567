"""FANet and the baselines it is compared with."""
