"""What came of it? Figures per class and tenant, as text, JSON and a page with charts."""
