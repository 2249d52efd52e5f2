"""What the domains share whose sequences, called lines here, are vectors of numbers: pen strokes, series."""
