"""The bench: ratios in one run, never absolute claims. ``tollhouse bench`` runs it."""
