"""How the frames of a session travel: one file a transport, one seam (`Transport`)."""
