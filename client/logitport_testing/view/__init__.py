"""The view of a simulation as HTML and SVG, for notebooks and for the page of `logitport play`."""
