"""Ways to run the node script on a node."""
