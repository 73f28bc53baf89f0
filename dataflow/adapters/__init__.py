"""Changes of the layers of a model: adapters beside their weights."""
