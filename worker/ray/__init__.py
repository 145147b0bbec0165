"""Workers as actors on a Ray cluster: one launcher per engine-core places, starts and watches them."""
