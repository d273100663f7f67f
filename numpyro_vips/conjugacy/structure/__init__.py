"""Factors, families and statistics found in the log joint.

Open `structure.py` first: it takes the log joint of `log_joint.py`, finds the
family of every latent and which latents share a factor of the posterior, and
says which statistics rows release.
"""
