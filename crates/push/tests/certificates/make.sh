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
# The key behind a passphrase, in every form that OpenSSL has written: PKCS #8 and the traditional one, which RSA keys of old exports have.
encrypted() {
    cat "$work/valid.crt" "$work/$1.pem" > "$1.pem"
}
openssl pkcs8 -topk8 -v2 aes-256-cbc -in "$work/valid.key" -passout pass:dunlin -out "$work/valid-pkcs8-aes.pem"
openssl pkcs8 -topk8 -v2 des3 -v2prf hmacWithSHA1 -in "$work/valid.key" -passout pass:dunlin -out "$work/valid-pkcs8-des3.pem"
openssl ec -aes128 -in "$work/valid.key" -passout pass:dunlin -out "$work/valid-dek-aes.pem" 2> "$work/log"
openssl ec -des3 -in "$work/valid.key" -passout pass:dunlin -out "$work/valid-dek-des3.pem" 2> "$work/log"
for form in pkcs8-aes pkcs8-des3 dek-aes dek-des3; do encrypted "valid-$form"; done
openssl req -x509 -newkey rsa:2048 -nodes -days 20000 -subj "/CN=Apple Push Services: com.example.app" -keyout "$work/rsa.key" \
    -out "$work/rsa.crt" 2> "$work/log"
openssl rsa -traditional -aes256 -in "$work/rsa.key" -passout pass:dunlin -out "$work/rsa-dek.key" 2> "$work/log"
cat "$work/rsa-dek.key" "$work/rsa.crt" > rsa-dek-aes.pem
