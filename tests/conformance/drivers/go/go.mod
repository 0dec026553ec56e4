module driver

go 1.19

require logitport v0.0.0

replace logitport => ../../../../bindings/go
