"""Who goes next? Bands between classes, fairness between tenants, order inside a tenant."""
