import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;

import static java.nio.charset.StandardCharsets.UTF_8;

/** Prints the bytes of each line of a file, both in hex, as Java has them after reading as text. */
public class ReplaceInvalidUtf8 {
    public static void main(String[] args) throws Exception {
        HexFormat hex = HexFormat.of();
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            String text = new String(hex.parseHex(line), UTF_8);
            System.out.println(hex.formatHex(text.getBytes(UTF_8)));
        }
    }
}
