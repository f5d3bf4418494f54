"""Elephas' import path `enums`: modes (`modes`) and frequencies (`frequency`)."""
