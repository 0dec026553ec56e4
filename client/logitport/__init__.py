"""The SDK: authors write processors with it, engines call the service with it."""
