"""Model providers behind one port: what a run asks of a model, and what it gets back."""
