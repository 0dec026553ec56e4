"""The compiled core of logitport. Only `logitport.core.compiled` imports it: that module checks whether it fits."""
