module epilogue.dev/lab/container

go 1.26.0
