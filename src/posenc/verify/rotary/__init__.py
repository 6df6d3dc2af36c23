"""Checks of rotations: by matrices, by angles, by tables of angles."""
