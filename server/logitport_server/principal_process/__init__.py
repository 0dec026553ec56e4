"""The process of one principal: its sessions, their histories and states, and the connections of its workers."""
