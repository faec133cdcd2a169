"""Report: turns an audit's result into text for people and for machines. It never judges."""
