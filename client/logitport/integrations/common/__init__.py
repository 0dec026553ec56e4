"""Parts that several engine hooks share."""
