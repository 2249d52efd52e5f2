"""What all figures share."""

from __future__ import annotations

# Okabe and Ito's colours, for paper: told apart by the colour-blind, and of different darkness in print. Black comes
# last: handwriting, which is black where it is plain, does without. The lighter ones are for a dark screen.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")

DARK_COLOURS = ("#56B4E9", "#F08C3C", "#2FC79A", "#E0A3C5", "#F0E442", "#A98BF0")


LINES = ("-", "--", ":", "-.")

TEXT_WIDTH = 10.0  # inches

WITH_BLACK = (*COLOURS, "#000000")
