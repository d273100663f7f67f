"""The compiled model as data, and expectations of its terms."""
