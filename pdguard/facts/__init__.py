"""Facts: what is known about engines, pairs, routers and nodes, and how it is known. Facts never judge."""
