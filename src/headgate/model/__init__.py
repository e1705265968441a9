"""What do we talk about? The words of the domain: frozen values, no behaviour that touches the world."""
