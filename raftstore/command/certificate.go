package command

import "github.com/levelrail/levelrail"

// CertificatePut writes what the cluster's authority has issued, or that it is revoked.
type CertificatePut struct {
	Certificate levelrail.Certificate `json:"certificate"`
}

func (CertificatePut) Kind() string { return "certificate.put" }
func (c CertificatePut) Subject() (levelrail.Kind, string) {
	return levelrail.KindCertificate, c.Certificate.Serial
}

func (c CertificatePut) Validate() error {
	return required("certificate's serial number", c.Certificate.Serial, "certificate's subject", c.Certificate.Subject)
}

func (c CertificatePut) Apply(t *Tx) (any, error) {
	old, there := get[levelrail.Certificate](t, c.Certificate.Serial)
	if there && old.Subject != c.Certificate.Subject {
		return nil, levelrail.Errorf(levelrail.ErrConflict, "the certificate %s was issued to %s", old.Serial, old.Subject)
	}
	c.Certificate.Stamp = t.stamp(old.Stamp, there)
	put(t, c.Certificate)
	return nil, nil
}
