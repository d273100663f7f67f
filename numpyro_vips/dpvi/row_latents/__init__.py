"""The latents of single rows: solved for, integrated out, or drawn."""
