"""An innocent engine beside hostile callers: `make hostile`."""
