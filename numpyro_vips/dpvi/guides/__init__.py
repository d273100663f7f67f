"""Guides: DPVI's Normals, those of users, and the posteriors they become."""
