import org.apache.kafka.common.security.scram.internals.ScramFormatter;
import org.apache.kafka.common.security.scram.internals.ScramMechanism;
import org.apache.kafka.common.security.scram.internals.ScramMessages.ClientFinalMessage;
import org.apache.kafka.common.security.scram.internals.ScramMessages.ClientFirstMessage;
import org.apache.kafka.common.security.scram.internals.ScramMessages.ServerFirstMessage;

import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.HexFormat;

import static java.nio.charset.StandardCharsets.UTF_8;

/**
 * Checks logins as a broker does (ScramSaslServer). A line of the file is a mechanism and, in hex, the
 * password and the client's first, the server's first and the client's last message. For each it prints
 * the user in hex, whether the name is a token's, whether the proof is right, and the server's signature.
 */
public class CheckScram {
    public static void main(String[] args) throws Exception {
        HexFormat hex = HexFormat.of();
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            String[] parts = line.split(" ");
            ScramMechanism mechanism = ScramMechanism.forMechanismName(parts[0]);
            ScramFormatter formatter = new ScramFormatter(mechanism);
            byte[] password = formatter.normalize(new String(hex.parseHex(parts[1]), UTF_8));
            ClientFirstMessage first = new ClientFirstMessage(hex.parseHex(parts[2]));
            ServerFirstMessage serverFirst = new ServerFirstMessage(hex.parseHex(parts[3]));
            ClientFinalMessage last = new ClientFinalMessage(hex.parseHex(parts[4]));
            byte[] salted = formatter.hi(password, serverFirst.salt(), serverFirst.iterations());
            byte[] stored = formatter.storedKey(formatter.clientKey(salted));
            byte[] signature = formatter.clientSignature(stored, first, serverFirst, last);
            boolean isRight = last.nonce().equals(serverFirst.nonce()) &&
                MessageDigest.isEqual(formatter.storedKey(signature, last.proof()), stored);
            byte[] proof = formatter.serverSignature(formatter.serverKey(salted), first, serverFirst, last);
            System.out.println(String.join(" ",
                hex.formatHex(ScramFormatter.username(first.saslName()).getBytes(UTF_8)),
                "" + first.extensions().tokenAuthenticated(), "" + isRight, hex.formatHex(proof)));
        }
    }
}
