# One image for every program of the product: FROM scratch, static binaries at /, user 65532, nothing else.
#
#   docker build .                                 builds inside, needs the Go module proxy
#   docker build --build-arg PROGRAMS=compass .    one program of those below cmd/
#   make docker-build                              takes what make built, needs no network
#
# hack/image makes the same image without Docker.
FROM golang:1.26 AS source
ARG PROGRAMS="manager compass"
ARG VERSION=dev
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN mkdir -p /root-of-image/etc/ssl/certs && cp /etc/ssl/certs/ca-certificates.crt /root-of-image/etc/ssl/certs/ \
 && for program in $PROGRAMS; do \
      CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" \
        -o "/root-of-image/$program" "./cmd/$program" || exit 1; \
    done

FROM scratch AS bin
COPY bin/ /
USER 65532:65532
ENTRYPOINT ["/manager"]

FROM scratch
COPY --from=source /root-of-image/ /
USER 65532:65532
ENTRYPOINT ["/manager"]
