"""Adapters that swap the ops into other libraries. Each imports its library only when it is itself imported."""
