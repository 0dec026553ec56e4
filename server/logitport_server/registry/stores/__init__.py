"""Where registrations are kept: in memory, in a folder, or in Redis. A store does not depend on processors."""
