"""Measures an innocent engine while another caller attacks its server: `make hostile`."""
