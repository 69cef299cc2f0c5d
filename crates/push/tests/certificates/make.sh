#!/bin/sh
# Makes the certificates of these tests as OpenSSL writes them: valid, over, not valid yet, with the key of another. Their password is `dunlin`.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat > "$work/ca.cnf" <<CONFIG
[ca]
default_ca = own
[own]
new_certs_dir = $work
database = $work/index
rand_serial = yes
default_md = sha256
policy = any
x509_extensions = plain
unique_subject = no
[any]
commonName = supplied
[plain]
basicConstraints = CA:FALSE
CONFIG
# NAME BEGIN END
certificate() {
    : > "$work/index"
    openssl ecparam -genkey -name prime256v1 -noout -out "$work/$1.key"
    openssl req -new -key "$work/$1.key" -subj "/CN=Apple Push Services: com.example.app" -out "$work/$1.csr"
    openssl ca -batch -notext -selfsign -config "$work/ca.cnf" -keyfile "$work/$1.key" -in "$work/$1.csr" \
        -startdate "$2" -enddate "$3" -out "$work/$1.crt" 2> "$work/log" || { cat "$work/log" >&2; exit 1; }
    cat "$work/$1.crt" "$work/$1.key" > "$1.pem"
    openssl pkcs12 -export -in "$1.pem" -passout pass:dunlin -out "$1.p12"
    openssl pkcs12 -export -legacy -certpbe PBE-SHA1-RC2-40 -keypbe PBE-SHA1-3DES -in "$1.pem" \
        -passout pass:dunlin -out "$1-old.p12"
}
certificate ended 20190101000000Z 20200131120000Z
certificate early 21000301000000Z 21010301000000Z
certificate valid 20200101000000Z 21000101000000Z
cat "$work/valid.crt" "$work/ended.key" > stranger.pem
