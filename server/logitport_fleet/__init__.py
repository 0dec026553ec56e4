"""A fleet of servers on Ray: supervision, scaling and the list of addresses. Nothing else imports Ray."""
