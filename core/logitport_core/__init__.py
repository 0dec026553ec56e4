"""The compiled core of logitport. Only `logitport.compiled` imports it: that module checks whether it fits."""
