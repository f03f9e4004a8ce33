module github.com/rigelbuild/compass-operator

go 1.26.0
